"""A checkpoint's config as the table reads it: alternative names, family defaults, nothing guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headmaps.errors import ArchitectureError

if TYPE_CHECKING:
    from headmaps.architectures.entry import Architecture


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

    def number(self, what: str, *names: str) -> int:
        """A dimension that must be there.

        Raises:
            ArchitectureError: absent, or not a positive whole number.
        """
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            found = "does not give" if value is None else f"gives {value!r} as"
            raise ArchitectureError(
                f"the config of this {self.model_type} model {found} its {what}",
                where="config.json",
                expected=f"a positive whole number under {' or '.join(names)}",
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
        return self.number("number of layers", *self.entry.n_layers)

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
