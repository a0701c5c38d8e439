"""Custom operations for weightless layers: one file an operation, each registered under its own name."""

from .generated_linear import GeneratedLinear
