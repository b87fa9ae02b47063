"""A checkpoint's config as the table reads it: alternative names, family defaults, nothing guessed."""

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headmaps.errors import ArchitectureError

if TYPE_CHECKING:
    from headmaps.architectures.entry import Architecture


MOST = 1 << 24
"""No dimension is larger; a config that says so would only fill the memory."""
MOST_LAYERS = 10_000


@contextmanager
def understood() -> Iterator[None]:
    """A config whose values are of no use where they are used becomes an ArchitectureError; also a decorator.

    A key with a text in the place of a number, say, is found where the number is needed, in one of many places.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ArchitectureError(
            f"the checkpoint's config does not make sense ({type(error).__name__}: {error})",
            where=f"config.json, as read in {Path(place.filename).name}, line {place.lineno}: {place.line}",
            expected="values of the kinds that transformers writes",
            do="compare config.json with the one that the model was published with",
        ) from error


@dataclass(frozen=True)
class Model:
    """One config read through one entry of the table.

    Attributes:
        config: the relevant part of config.json (the text or vision part of a multimodal one).
        entry: the family's entry.
        stack: encoder, decoder, cross or None.
        tower: text, vision or None.
        d_head: set once the tensors' shapes are known; 0 before.
        names: of the checkpoint's tensors, for the few facts that only they tell.
    """

    config: Mapping[str, Any]
    entry: "Architecture"
    model_type: str
    stack: str | None = None
    tower: str | None = None
    d_head: int = 0
    names: frozenset[str] = frozenset()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that the config (else the family's defaults) gives a value other than null.

        A null in the config hides the family's default: it is how configs say "none".
        """
        for name in names:
            value = self.config[name] if name in self.config else self.entry.defaults.get(name)
            if value is not None:
                return value
        return default

    def number(self, what: str, *names: str, most: int = MOST) -> int:
        """A dimension that must be there.

        Raises:
            ArchitectureError: absent, not a positive whole number, or larger than `most`.
        """
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            found = "does not give" if value is None else f"gives {value!r} as"
            raise ArchitectureError(
                f"the config of this {self.model_type} model {found} its {what}",
                where="config.json",
                expected=f"a whole number from 1 to {most} under {' or '.join(names)}",
                do="complete the checkpoint's config.json",
            )
        return value

    @property
    def d_model(self) -> int:
        """Width of the residual stream."""
        return self.number("width", *self.entry.d_model)

    @property
    def n_layers(self) -> int:
        """Layers of the stack."""
        return self.number("number of layers", *self.entry.n_layers, most=MOST_LAYERS)

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.number("number of heads", *self.entry.n_heads)

    @property
    def n_kv_heads(self) -> int:
        """Key/value heads: as many as query heads where the family or the config names none."""
        rule = self.entry.n_kv_heads
        if callable(rule):
            return rule(self)
        if self.get(*rule) is None:
            return self.n_heads
        return self.number("number of key/value heads", *rule)

    @property
    def explicit_d_head(self) -> int | None:
        """d_head where the config names it."""
        names = self.entry.d_head
        return self.number("head dimension", *names) if self.get(*names) is not None else None

    @property
    def layer_types(self) -> list[str] | None:
        """The config's own list of layer types, None where it has none.

        Raises:
            ArchitectureError: it does not name every layer.
        """
        types: list[str] | None = self.get("layer_types")
        if types is not None and len(types) < self.n_layers:
            raise ArchitectureError(
                f"layer_types names {len(types)} of {self.n_layers} layers", where="config.json: layer_types"
            )
        return types
