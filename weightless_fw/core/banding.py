"""Which layers share a W0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BandingError(ValueError):
    """The asked number of bands cannot be met; the message says what can."""


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


def band_layers(attention_types: Sequence[str], groups: int | None) -> Banding:
    """Splits the layers into ``groups`` bands of equal size.

    A band holds consecutive layers of one attention type, since sliding and
    global layers see different inputs. The exception is one band for all,
    the published G = 1.

    Args:
        attention_types: The attention type of each layer, in order.
        groups: The number of bands; None is one band per layer.

    Raises:
        BandingError: No such split exists.
    """
    count = len(attention_types)
    if groups is None or groups == count:
        return Banding(tuple(range(count)))
    if groups == 1:
        return Banding((0,) * count)
    members = {
        kind: [i for i, k in enumerate(attention_types) if k == kind]
        for kind in dict.fromkeys(attention_types)
    }
    sizes = [n for n in range(1, count + 1) if all(len(m) % n == 0 for m in members.values())]
    possible = sorted({1, *(count // n for n in sizes)})
    if groups not in possible:
        kinds = " and ".join(f"{len(m)} {kind}" for kind, m in members.items())
        raise BandingError(
            f"groups={groups}: {count} layers ({kinds}) do not divide into that many "
            f"equal bands of one attention type; possible are {', '.join(map(str, possible))}"
        )
    size = count // groups
    chunks = [m[i : i + size] for m in members.values() for i in range(0, len(m), size)]
    # Number the bands by their first layer, so that a reader meets them in order.
    band_of = [0] * count
    for band, chunk in enumerate(sorted(chunks)):
        for layer in chunk:
            band_of[layer] = band
    return Banding(tuple(band_of))
