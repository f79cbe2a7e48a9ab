"""The least that a workload must move, how far from it we are, loops as arrays."""

import sys
from pathlib import Path
from timeit import repeat

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from loops import TABLE, by_loop, decode_batch

from minisgl.benchmark.roofline import measure_roofline
from minisgl.benchmark.subject import Subject
from minisgl.benchmark.traffic import traffic_of
from minisgl.benchmark.workload import Workload
from minisgl.scheduler.inputs import make_inputs
from tools.stagekit import measured, model_path, run

SETTINGS = {"max_running_req": 8, "page_size": 16, "num_page_override": 256}


def main(model: str = "qwen3-tiny", device: str = "cpu") -> None:
    """Count, measure the same, and find one result in two ways."""
    path, work = str(model_path(model)), Workload(8, 8, 32)
    subject = Subject(path, False, "float32", device, SETTINGS)
    with subject.engine() as llm:
        asked = work.draw(llm.engine.sampler.vocab_size)
        least = traffic_of(llm.engine, llm.config.model_config, asked)
    steps = max(one.output for one in asked)
    print(f"keys and values  {least.cache:>12,} bytes")
    print(f"weights          {least.weights:>12,} bytes in {steps} steps")
    print(f"prompts          {least.prompts:>12,} operations\n")

    for row in measure_roofline(subject, work, 2, lambda said: None).rows:
        print(f"{row['']:33}{measured(1000 * row['seconds'], 'ms', 2):>12}")

    batch = decode_batch()
    make_inputs(batch, TABLE)
    found = batch.positions, batch.out_loc
    pairs = zip(found, by_loop(batch), strict=True)
    equal = all(array.equal(loop) for array, loop in pairs)
    print(f"\ninputs of {batch.size} requests equal: {equal}")
    for name, way in {"with a loop": by_loop, "as arrays": make_inputs}.items():
        rest = (TABLE,) if way is make_inputs else ()
        took = repeat(lambda: way(batch, *rest), number=10, repeat=5)  # noqa: B023
        print(f"{name:33}{measured(1e5 * min(took), 'us', 0):>12}")


if __name__ == "__main__":
    run(main)
