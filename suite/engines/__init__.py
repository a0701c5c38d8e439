"""What generates tokens: the protocol, the MAX engine and a fake one."""

from suite.engines.engine import ArmFailed, Engine, LoadRequest, Timed

__all__ = ["ArmFailed", "Engine", "LoadRequest", "Timed"]
