"""Do the CUDA sources compile, without a warning, for a GPU that is not here?

python tools/nvcc.py

Needs nvcc and no device. The simulator proves what the kernels compute; this, that the
same text is CUDA.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

INSTANCES = {
    "store.cu": [
        "store<int32_t, 2048, 16, 128, 1>",
        "store<int64_t, 6, 2, 128, 1>",
    ],
    "index.cu": [
        "lookup<int32_t, 2048, 16, 1, 128, 1>",
        "lookup<int64_t, 16384, 16, 8, 128, 1>",
    ],
    "moe_align.cu": ["align_blocks"],
}
"""For each source what is made of its templates here."""

FLAGS = ["-std=c++17", "-Xcompiler=-Wall", "--Werror=all-warnings"]


def compile_one(nvcc: str, source: str, arch: str, folder: Path) -> str:
    """What nvcc says about a source and its instances; empty if it is content."""
    from minisgl.kernel.compile import CSRC, binding

    named = [(f"f{i}", code) for i, code in enumerate(INSTANCES[source])]
    text = folder / "binding.cu"
    text.write_text(binding([source], named))
    flags = [*FLAGS, f"-arch={arch}", f"-I{CSRC}"]
    done = subprocess.run(
        [nvcc, *flags, "-c", str(text), "-o", str(folder / "binding.o")],
        capture_output=True,
        text=True,
    )
    said = (done.stdout + done.stderr).strip()
    return said or (f"exit code {done.returncode}" if done.returncode else "")


def main(
    arch: Annotated[str, typer.Option(help="What to compile for.")] = "sm_90",
) -> None:
    """Compile every CUDA source with nvcc; exit 1 if it says anything."""
    from minisgl.kernel.compile import CSRC

    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("error: nvcc is not installed")
    found = {path.name for path in CSRC.glob("*.cu")}
    if found != set(INSTANCES):
        odd = ", ".join(sorted(found ^ set(INSTANCES)))
        raise SystemExit(f"error: INSTANCES and csrc/ differ: {odd}")
    failed = False
    for source in INSTANCES:
        with tempfile.TemporaryDirectory() as scratch:
            said = compile_one(nvcc, source, arch, Path(scratch))
        print(f"{source}: {said or 'ok'}")
        failed |= bool(said)
    if failed:
        raise SystemExit(1)
    print(f"nvcc: {len(found)} sources compile for {arch}")


if __name__ == "__main__":
    typer.run(main)
