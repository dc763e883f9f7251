"""Names that stand elsewhere now."""

from fsstore.reference.targets import Fetcher, OpenTarget, TargetPlace, Targets, check_prefixes, policy_of

__all__ = ["Fetcher", "OpenTarget", "TargetPlace", "Targets", "check_prefixes", "policy_of"]
