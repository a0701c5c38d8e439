"""Weightless layers for MAX: ``max generate --custom-architectures weightless_fw``."""

from weightless_fw.models.gemma3.arch import weightless_gemma3_arch

ARCHITECTURES = [weightless_gemma3_arch]
