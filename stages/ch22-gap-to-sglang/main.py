"""A server that tells what it does: its metrics, its request log, their price."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from urllib.request import urlopen

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import openai
from price import seconds_a_token

import minisgl
from tools.stagekit import measured, model_path, run

ROOT = Path(minisgl.__file__).resolve().parents[1]
OPTIONS = ["--port", "0", "--served-model-name", "tiny", "--page-size", "4"]
OPTIONS += ["--dtype", "float32", "--num-pages", "4096", "--log-requests"]
SHARED = [*range(40)]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}
SHOWN = ("_up ", "_running ", "prompt_", "_cached_", "_rate", "reason=")
SHOWN += ("first_token_seconds_count", 'le="60"', 'state="used"')


def main(model: str = "qwen3-tiny") -> None:
    """Three answers, one of which nobody waits for; then look at the numbers."""
    price = measured(seconds_a_token() * 1e6, "us")
    command = [sys.executable, "-m", "minisgl", *OPTIONS, "--model"]
    command.append(str(model_path(model)))
    server = subprocess.Popen(command, cwd=ROOT, stdout=-1, text=True)
    ready = next(line for line in server.stdout if line.startswith("curl"))
    url = ready.split()[1].removesuffix("/chat/completions")
    with openai.OpenAI(base_url=url, api_key="none") as client:
        for end in ([7], [8, 9]):
            asked = {"model": "tiny", "prompt": SHARED + end, "max_tokens": 8}
            client.completions.create(**asked, **GREEDY)
        asked |= {"prompt": [1, 2, 3], "max_tokens": 3000, "stream": True}
        with client.completions.create(**asked, **GREEDY) as stream:
            next(iter(stream))  # and no more
    place = f"{url.removesuffix('/v1')}/metrics"
    while "_running 0" not in (text := urlopen(place).read().decode()):
        sleep(0.05)  # an abort takes a moment
    for line in text.splitlines():
        if line.startswith("minisgl_") and any(word in line for word in SHOWN):
            print(line)
    server.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in server.stdout if line[0] == "{"]
    print("\na line has", *lines[0])
    for one in lines:
        cached = f"{one['cached_tokens']} of {one['prompt_tokens']} cached"
        first = measured(one["ttft"] * 1e3, "ms")
        print(f"{one['id']}: {cached}, first {first}, {one['finish_reason']}")
    print("\nto count a token:", price)


if __name__ == "__main__":
    run(main)
