"""One of several texts, token by token, without a grammar compiler."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ChoiceMatcher:
    """Knows which tokens keep an answer on the way to one of some texts.

    texts: what the answer may be; one may be the beginning of another.
    vocabulary: the bytes of each token, empty for those without a text.
    ends: the end tokens.
    """

    def __init__(
        self,
        texts: Sequence[str],
        vocabulary: Sequence[bytes],
        ends: Collection[int],
    ) -> None:
        self.texts = [text.encode() for text in texts]
        self.vocabulary, self.ends = vocabulary, set(ends)
        self.said = b""
        self.over = False

    def allowed(self) -> set[int]:
        """The tokens that may come now; none once an end token has come."""
        if self.over:
            return set()
        found = {
            token
            for token, piece in enumerate(self.vocabulary)
            if piece and self._begins(self.said + piece)
        }
        return found | (self.ends if self.said in self.texts else set())

    def accept(self, token: int) -> bool:
        """Go on by one token; False, and nothing changes, if it may not come."""
        if token not in self.allowed():
            return False
        self.over = token in self.ends
        self.said += b"" if self.over else self.vocabulary[token]
        return True

    def _begins(self, text: bytes) -> bool:
        """Whether it is the beginning of a text, or all of it."""
        return any(whole.startswith(text) for whole in self.texts)
