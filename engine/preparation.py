"""Settings by which samples become tensors: images by size and normalisation, texts by their words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from .recipe import LATER, Frozen, Sparse


class Preprocess(Frozen):
    """Settings by which images become tensors."""

    size: int = Field(ge=8, le=1024)
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: Literal["shortest", "squash"] = "shortest"

    @field_validator("std")
    @classmethod
    def _positive(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0:
            raise ValueError("each standard deviation must be greater than 0")
        return value

    @property
    def extent(self) -> int:
        """Return the side of an image in px."""
        return self.size

    @property
    def reading(self) -> tuple[Any, ...]:
        """Return what decoded images depend on; equal preparations in this differ in their normalisation only."""
        return self.size, self.interpolation, self.resize_mode

    @property
    def words(self) -> str:
        """Return the settings in a line, for people."""
        mean, std = ("/".join(f"{number:.4g}" for number in part) for part in (self.mean, self.std))
        return f"{self.size} px, {self.interpolation}, {self.resize_mode}, mean {mean}, std {std}"


class Tokenisation(Sparse):
    """Settings by which texts become rows of token ids."""

    vocabulary: str = Field("vocabulary.json", min_length=1)  # a file of the zoo
    length: int = Field(ge=4, le=4096)  # tokens a text, special ones included; what is longer is cut
    # Ids that pad, begin, separate, mask and stand for unknown words, −1 where there is none; those of a published
    # tokenizer. None of a vocabulary of whole words.
    special: Annotated[tuple[int, int, int, int, int] | None, LATER] = None
    answers: Annotated[bool, LATER] = False  # whether classes are answers that a model is asked to rank
    digest: Annotated[str, LATER] = ""  # of the vocabulary, known once it has been read; never written by hand

    @property
    def extent(self) -> int:
        """Return the length of a text in tokens."""
        return self.length

    @property
    def reading(self) -> tuple[Any, ...]:
        """Return what rows of ids depend on."""
        return self.vocabulary, self.length, self.digest, self.special, self.answers


Preparation = Preprocess | Tokenisation
