"""Who guesses for a model, and whether they go together."""

from __future__ import annotations

from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.draft_model import ModelDrafter, draft_config
from minisgl.scheduler.drafts import BaseDrafter, NgramDrafter
from minisgl.utils import load_tokenizer


def create_drafter(config: SchedulerConfig) -> BaseDrafter | None:
    """What the settings ask for; None if they ask for none.

    Raises:
        ValueError: it cannot guess for this model or these ranks.
    """
    if config.speculative is None:
        return None
    if config.model_config.linear is not None:
        raise ValueError(
            f"speculative {config.speculative} cannot be used with "
            f"{config.model_path}: its state cannot be taken back after a wrong "
            "guess; leave it out"
        )
    if config.speculative == "ngram":
        bounds = config.speculative_ngram_min, config.speculative_ngram_max
        return NgramDrafter(*bounds)
    _check_pair(config)
    return ModelDrafter(config)


def _check_pair(config: SchedulerConfig) -> None:
    """Whether a draft model can guess for the model.

    Raises:
        ValueError: it cannot; the message says why.
    """
    if config.tp_info.size > 1:
        raise ValueError(
            "a draft model runs on one rank; use --speculative ngram with "
            f"{config.tp_info.size} ranks"
        )
    draft = draft_config(config)
    sizes = config.model_config.vocab_size, draft.model_config.vocab_size
    mine, its = (
        load_tokenizer(c.model_path).get_vocab() for c in (config, draft)
    )
    if mine != its or sizes[0] != sizes[1]:
        raise ValueError(
            f"the draft model {draft.model_path} has another vocabulary than "
            f"{config.model_path} ({sizes[1]} tokens, not {sizes[0]}, or other "
            "ones); choose one of the same family"
        )
