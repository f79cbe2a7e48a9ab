"""Policies on a hundred simulated replicas, then three real ones at one address."""

import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import openai

import minisgl
from minisgl.deploy.policy import POLICIES
from minisgl.deploy.simulate import Machine, simulate
from minisgl.deploy.traffic import Traffic
from tools.stagekit import model_path, run

ROOT = Path(minisgl.__file__).resolve().parents[1]
OPTIONS = ["--port", "0", "--served-model-name", "tiny", "--num-pages", "4096"]
OPTIONS += ["--dtype", "float32", "--replicas", "3"]


def main(model: str = "qwen3-tiny") -> None:
    """Simulate a hundred replicas; then start three and talk to them."""
    for name in POLICIES.supported_names():
        policy = POLICIES[name](Random(0))
        found = simulate(policy, 100, Traffic(), Machine(), 60.0)
        print(f"{name}: {found.hit_rate:.0%} of 100 replicas' prompts cached")
    command = [sys.executable, "-m", "minisgl.deploy", "--model"]
    command += [str(model_path(model)), *OPTIONS]
    server = subprocess.Popen(command, cwd=ROOT, stdout=-1, text=True)
    ready = next(line for line in server.stdout if line.startswith("curl"))
    url = ready.split()[1].removesuffix("/chat/completions")
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    create = client.chat.completions.with_raw_response.create
    began: dict[int, str] = {}
    talks: list[list[dict[str, str]]] = [[], [], []]
    for turn, number in product(range(3), range(3)):
        question = f"{turn} is what user {number} asks about. " * 4
        talks[number].append({"role": "user", "content": question})
        asked = {"model": "tiny", "messages": talks[number], "max_tokens": 8}
        raw = create(**asked, temperature=0)
        where, answer = raw.headers["x-minisgl-replica"], raw.parse()
        said = answer.choices[0].message.content
        talks[number].append({"role": "assistant", "content": said})
        used, first = answer.usage, began.setdefault(number, where)
        if turn:
            same = "the same" if where == first else "another"
            part = used.prompt_tokens_details.cached_tokens / used.prompt_tokens
            print(
                f"user {number}, turn {turn}: {same} replica, {part:.0%} cached"
            )
    server.send_signal(signal.SIGTERM)
    print("exit code", server.wait(60))


if __name__ == "__main__":
    run(main)
