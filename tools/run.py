"""Serve a model with the newest engine of this checkout: `make run`.

Before there is a server, or with --prompt, one question is answered.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from tools.models import model_path  # noqa: E402
from tools.steplib.book import Book, Chapter, ManifestError  # noqa: E402
from tools.zoo.places import ModelError, models_dir  # noqa: E402
from tools.zoo.recipes import RECIPES  # noqa: E402

QUESTION = "What is the capital of France?"
MODEL = "smollm2-135m"
FALLBACK = "qwen3-tiny"
LLM = "llm/llm.py"
SERVER = "server/launch.py"
PORT = 1919


def takes_prompt(main: Path) -> bool:
    """Whether a function of this main.py has a parameter ``prompt``."""
    tree = ast.parse(main.read_text(encoding="utf-8"))
    functions = (
        node for node in tree.body if isinstance(node, ast.FunctionDef)
    )
    return any(
        argument.arg == "prompt"
        for function in functions
        for argument in [*function.args.args, *function.args.kwonlyargs]
    )


def newest(book: Book) -> Chapter | None:
    """The chapter that answers: the last one, or before LLM the last that can."""
    if LLM in book.paths:
        return book.chapters[-1]
    able = [
        c for c in book.chapters if c.main.is_file() and takes_prompt(c.main)
    ]
    return able[-1] if able else None


def usable(model: str) -> str:
    """`model`, or a tiny one (said in one line) if the default one is not here.

    Raises:
        SystemExit: the model was asked for and cannot be had.
    """
    if model == MODEL and not (models_dir() / MODEL / "config.json").is_file():
        print(
            f"{MODEL} is not here; get it with `python tools/models.py fetch {MODEL}`."
            f" Until then {FALLBACK} answers: its weights are random, its words noise."
        )
        return FALLBACK
    try:
        model_path(model)
    except ModelError as error:
        raise SystemExit(f"error: {error}") from None
    return model


def serve(model: str, port: int) -> None:
    """Become the server, which prints a command to try."""
    command = [sys.executable, "-m", "minisgl"]
    command += ["--model", str(model_path(model)), "--served-model-name", model]
    command += ["--port", str(port)]
    os.chdir(ROOT)
    sys.stdout.flush()
    os.execv(sys.executable, command)


def main(
    prompt: Annotated[
        str | None, typer.Option(help="Answer this question, then end.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name, folder or hub id.")] = MODEL,
    port: Annotated[int, typer.Option(help="Where the server is.")] = PORT,
) -> None:
    """Serve a model; or answer a question, then say where to go on."""
    try:
        book = Book.load()
        chapter = newest(book)
    except ManifestError as error:
        raise SystemExit(f"error: {error}") from None
    if chapter is None:
        raise SystemExit(
            "error: no chapter here has a main.py that takes --prompt"
        )
    model = usable(model)
    if SERVER in book.paths and prompt is None:
        serve(model, port)
        return
    prompt = prompt or QUESTION
    if LLM in book.paths:
        print(f"engine: minisgl.llm.LLM\nmodel: {model}\nquestion: {prompt}\n")
        answer(prompt, model)
    else:
        print(f"engine: {chapter.name}\nmodel: {model}\nquestion: {prompt}\n")
        sys.stdout.flush()
        # Through its own build: a later package may not suit an earlier main.
        command = [sys.executable, "tools/steps.py", "run", str(chapter.number)]
        command += ["--model", model, "--prompt", prompt]
        code = subprocess.run(command, cwd=ROOT).returncode
        if code:
            raise typer.Exit(code)
    about = "random weights, so noise" if model in RECIPES else "a real model"
    print(
        f"\nThat was the engine as {chapter.id} leaves it, on {model} ({about}). "
        "Begin with docs/en/ch00-step0.md; `make help` lists what else there is."
    )


def answer(prompt: str, model: str) -> None:
    """Ask the engine of this checkout and print what it says, with its rate."""
    from minisgl import llm as offline
    from minisgl.core import SamplingParams
    from tools.stagekit import encode_chat, measured

    try:
        llm = offline.LLM(str(model_path(model)), max_running_req=1)
        ids = encode_chat(llm.tokenizer, prompt)
        start = time.perf_counter()
        (result,) = llm.generate([ids], SamplingParams(max_tokens=256))
        seconds = time.perf_counter() - start
    except NotImplementedError as error:
        raise SystemExit(
            f"error: not written yet on this tag: {error}"
        ) from None
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    if result["error"]:
        raise SystemExit(f"error: {result['error']}")
    count = len(result["token_ids"])
    print(result["text"])
    print(f"\n{count} tokens, {measured(count / seconds, 'tokens/s')}")


if __name__ == "__main__":
    typer.run(main)
