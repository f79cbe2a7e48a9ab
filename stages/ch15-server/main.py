"""A server of several processes, the openai client, and curl."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import openai

import minisgl
from tools.stagekit import measured, model_path, run

ROOT = Path(minisgl.__file__).resolve().parents[1]
OPTIONS = ["--port", "0", "--served-model-name", "tiny", "--num-pages", "4096"]
QUESTION = [{"role": "user", "content": "Tell me Paris."}]
KIND = "content-type: application/json"


def post(url: str, body: dict[str, object]) -> tuple[int, str]:
    """Status and body, as curl has them."""
    code, data = "\n%{http_code}", json.dumps(body)
    command = ["curl", "-s", "-w", code, url, "-d", data, "-H", KIND]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def main(model: str = "qwen3-tiny") -> None:
    """Start a server, talk to it, stop it."""
    command = [sys.executable, "-m", "minisgl", "--model"]
    command += [str(model_path(model)), *OPTIONS, "--dtype", "float32"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=-1, text=True)
    ready = next(line for line in server.stdout if line.startswith("curl"))
    url = shlex.split(ready)[1].removesuffix("/chat/completions")
    client = openai.OpenAI(base_url=url, api_key="none")
    asked = {"model": "tiny", "messages": QUESTION, "temperature": 0}
    limits = {"max_tokens": 12, "stream": True}
    answer = client.chat.completions.create(**asked, max_tokens=12)
    text, used = answer.choices[0].message.content, answer.usage
    print(f"{used.prompt_tokens} + {used.completion_tokens} tokens: {text!r}")
    start, pieces = time.perf_counter(), []
    for chunk in client.chat.completions.create(**asked | limits):
        pieces.append(chunk.choices[0].delta.content or "")
    print("streamed, the same text:", "".join(pieces) == text)
    spent = (time.perf_counter() - start) * 1e3 / len(pieces)
    print("a piece every", measured(spent, "ms"))
    for wrong in ({"max_tokens": "5"}, {"top_p": 7}, {"model": "other"}):
        status, body = post(f"{url}/chat/completions", asked | wrong)
        error = json.loads(body)["error"]
        print(f"\n{wrong}: {status}, {error['param']}\n  {error['message']}")
    server.send_signal(signal.SIGTERM)
    print("\nexit code after SIGTERM:", server.wait(20))


if __name__ == "__main__":
    run(main)
