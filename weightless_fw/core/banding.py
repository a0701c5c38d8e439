"""Which layers share a W0.

A band never mixes attention types: sliding and global layers see different
inputs, and in Gemma 4 their projections differ in shape. The one exception is
G = 1, the published "one W0 for all", where every layer has the same shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

GRAMMAR = (
    "a number of bands (6), their sizes (5+5+5+3, sliding layers first), the band of "
    "each layer (0,0,1,...), or one of these per projection (self_attn=9;mlp.down_proj=6)"
)


class BandingError(ValueError):
    """The asked bands cannot be formed; the message says what can."""


@dataclass(frozen=True)
class Banding:
    """A partition of the layers: ``band_of[layer]`` is the layer's band."""

    band_of: tuple[int, ...]

    @property
    def groups(self) -> int:
        return max(self.band_of) + 1

    @property
    def shared(self) -> bool:
        """Whether any W0 serves more than one layer."""
        return self.groups < len(self.band_of)

    def layers(self, band: int) -> tuple[int, ...]:
        return tuple(i for i, b in enumerate(self.band_of) if b == band)


@dataclass(frozen=True)
class Bands:
    """Bands as asked for, before a model is known: a number, sizes or a map."""

    text: str
    count: int | None = None
    sizes: tuple[int, ...] = ()
    band_of: tuple[int, ...] = ()


@dataclass(frozen=True)
class Groups:
    """What WEIGHTLESS_GROUPS asks for, per projection where it says so."""

    default: Bands | None = None
    """Bands of every projection that is not named; None is one band per layer."""

    named: Mapping[str, Bands] = field(default_factory=dict)
    """By projection ("mlp.down_proj") or by half of the layer ("mlp")."""

    def of(self, projection: str) -> Bands | None:
        """The bands of a projection: by its own name, by its half, else the default."""
        half = projection.partition(".")[0]
        return self.named.get(projection, self.named.get(half, self.default))


def parse_groups(text: str) -> Groups:
    """Reads ``COUNT``, ``SIZE+SIZE``, ``BAND,BAND`` or ``NAME=...;NAME=...``.

    Raises:
        BandingError: The text is none of these.
    """
    default, named = None, {}
    for entry in text.split(";"):
        name, equals, bands = (part.strip() for part in entry.rpartition("="))
        parsed = _parse_bands(bands, text)
        if not equals:
            if default is not None:
                raise BandingError(f"groups={text}: two entries without a projection's name")
            default = parsed
        elif not name or name in named:
            raise BandingError(f"groups={text}: projection {name!r} is empty or named twice")
        else:
            named[name] = parsed
    return Groups(default, named)


def _parse_bands(text: str, whole: str) -> Bands:
    separator = "," if "," in text else "+"
    try:
        numbers = tuple(int(part) for part in text.split(separator))
    except ValueError:
        raise BandingError(f"groups={whole}: {text!r} is none of {GRAMMAR}") from None
    if min(numbers) < (0 if separator == "," else 1):
        raise BandingError(f"groups={whole}: {min(numbers)} in {text!r} must be at least 1")
    if separator == ",":
        return Bands(text, band_of=numbers)
    return Bands(text, sizes=numbers) if len(numbers) > 1 else Bands(text, count=numbers[0])


def resolve_bands(
    groups: Groups | None, attention_types: Sequence[str], projections: Sequence[str]
) -> Mapping[str, Banding]:
    """Forms the bands of every projection.

    Args:
        groups: What was asked; None is one band per layer.
        attention_types: The attention type of each layer, in order.
        projections: Names such as "self_attn.q_proj".

    Raises:
        BandingError: A name is unknown, or the bands cannot be formed.
    """
    groups = groups or Groups()
    known = {*projections, *(name.partition(".")[0] for name in projections)}
    for name in groups.named:
        if name not in known:
            raise BandingError(
                f"groups: unknown projection {name!r}; known are {', '.join(sorted(known))}"
            )
    return {name: band_layers(attention_types, groups.of(name)) for name in projections}


def band_layers(attention_types: Sequence[str], asked: Bands | int | None) -> Banding:
    """Splits the layers into bands of one attention type each.

    A number of bands is dealt to the attention types in proportion to their
    layers and each type's layers are cut into consecutive runs as equal as
    they can be. Sizes cut the sliding layers first, in order, then the global
    ones (whichever type comes first in the model leads).

    Args:
        attention_types: The attention type of each layer, in order.
        asked: The bands; a plain number counts them; None is one band per layer.

    Raises:
        BandingError: No such split exists.
    """
    count = len(attention_types)
    if isinstance(asked, int):
        asked = Bands(str(asked), count=asked)
    if asked is None:
        return Banding(tuple(range(count)))
    if asked.band_of:
        return _from_map(asked, attention_types)
    members = _layers_by_type(attention_types)
    if asked.sizes:
        return _from_sizes(asked, members, count)
    assert asked.count is not None
    if asked.count == 1:
        return Banding((0,) * count)
    if not len(members) <= asked.count <= count:
        raise BandingError(
            f"groups={asked.text}: {count} layers ({_described(members)}) form 1 band or "
            f"{len(members)} to {count} bands of one attention type"
        )
    shares = _dealt(asked.count, [len(m) for m in members.values()])
    runs = [
        run for layers, k in zip(members.values(), shares, strict=True) for run in _cut(layers, k)
    ]
    return _numbered(runs, count)


def _from_map(asked: Bands, attention_types: Sequence[str]) -> Banding:
    count, band_of = len(attention_types), asked.band_of
    if len(band_of) != count:
        raise BandingError(
            f"groups={asked.text}: {len(band_of)} entries, the model has {count} layers"
        )
    missing = sorted(set(range(max(band_of) + 1)) - set(band_of))
    if missing:
        raise BandingError(f"groups={asked.text}: band {missing[0]} holds no layer")
    if len(set(band_of)) > 1:
        for band in set(band_of):
            kinds = {k for k, b in zip(attention_types, band_of, strict=True) if b == band}
            if len(kinds) > 1:
                raise BandingError(
                    f"groups={asked.text}: band {band} mixes {' and '.join(sorted(kinds))} layers"
                )
    return Banding(band_of)


def _from_sizes(asked: Bands, members: Mapping[str, list[int]], count: int) -> Banding:
    runs, remaining = [], list(asked.sizes)
    for kind, layers in members.items():
        start = 0
        while start < len(layers):
            size = remaining.pop(0) if remaining else 0
            if not 0 < size <= len(layers) - start:
                raise BandingError(
                    f"groups={asked.text}: sizes must add up to each attention type in turn "
                    f"({_described(members)}); the {kind} layers are not filled exactly"
                )
            runs.append(layers[start : start + size])
            start += size
    if remaining:
        raise BandingError(
            f"groups={asked.text}: adds up to {sum(asked.sizes)}, the model has {count} layers"
        )
    return _numbered(runs, count)


def _layers_by_type(attention_types: Sequence[str]) -> dict[str, list[int]]:
    return {
        kind: [i for i, k in enumerate(attention_types) if k == kind]
        for kind in dict.fromkeys(attention_types)
    }


def _described(members: Mapping[str, list[int]]) -> str:
    return " and ".join(f"{len(layers)} {kind}" for kind, layers in members.items())


def _dealt(count: int, sizes: Sequence[int]) -> list[int]:
    """``count`` in shares proportional to ``sizes``: at least 1, at most the size each."""
    shares = [1] * len(sizes)
    for _ in range(count - len(sizes)):
        # The next band goes where the bands are largest.
        neediest = max(range(len(sizes)), key=lambda i: sizes[i] / shares[i])
        shares[neediest] += 1
    return shares


def _cut(layers: Sequence[int], bands: int) -> list[Sequence[int]]:
    """Consecutive runs whose lengths differ by at most one."""
    edges = [round(i * len(layers) / bands) for i in range(bands + 1)]
    return [layers[a:b] for a, b in pairwise(edges)]


def _numbered(runs: Sequence[Sequence[int]], count: int) -> Banding:
    """Bands numbered by their first layer, so that a reader meets them in order."""
    band_of = [0] * count
    for band, run in enumerate(sorted(runs, key=min)):
        for layer in run:
            band_of[layer] = band
    return Banding(tuple(band_of))
