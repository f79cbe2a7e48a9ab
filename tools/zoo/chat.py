"""Special tokens and chat templates of the tiny checkpoints."""

from dataclasses import dataclass

VOCAB_SIZE = 512

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' "
    "+ message['role'] + '<|end_header_id|>\\n\\n' + message['content'] "
    "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' "
    "%}{{ message['content'] + eos_token }}{% else %}{{ '[INST]' + message['content'] "
    "+ '[/INST]' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Style:
    """Special tokens (they take the last ids) and chat template of a family.

    Attributes:
        ends: tokens that end an answer; the first is the tokenizer's eos token.
        bos: put before every text when given, by the tokenizer as by the template.
    """

    specials: tuple[str, ...]
    ends: tuple[str, ...]
    template: str
    bos: str | None = None

    def id_of(self, token: str) -> int:
        """Id of one of the special tokens."""
        return VOCAB_SIZE - len(self.specials) + self.specials.index(token)


STYLES = {
    "chatml": Style(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<|im_end|>", "<|endoftext|>"),
        CHATML,
    ),
    "llama3": Style(
        (
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        ),
        ("<|eot_id|>", "<|end_of_text|>"),
        LLAMA3,
        "<|begin_of_text|>",
    ),
    "mistral": Style(
        ("<s>", "</s>", "[INST]", "[/INST]"), ("</s>",), MISTRAL, "<s>"
    ),
}
