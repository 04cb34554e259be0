"""Dynamic settings: declared once, read from a file in Temporal's shape, reloaded while the server runs."""

from fairlead.settings import limits, matching, membership
from fairlead.settings.catalogue import SETTINGS
from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.file import ParsedFile, parse_file
from fairlead.settings.for_core import buffer_limits, partition_config, scaler_settings, weighted_rules
from fairlead.settings.kinds import Plain, as_text
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem, UnknownSetting
from fairlead.settings.reference import reference
from fairlead.settings.registry import ConflictingDeclarations, Registry
from fairlead.settings.rules import EVERYWHERE, Rule, RuleSet, Scope
from fairlead.settings.source import DynamicSettings, Outcome, Reload, parse_overrides, read_file

__all__ = [
    "EVERYWHERE",
    "SETTINGS",
    "ConflictingDeclarations",
    "DynamicSettings",
    "InvalidSettings",
    "InvalidValue",
    "Outcome",
    "ParsedFile",
    "Plain",
    "Problem",
    "Reach",
    "Registry",
    "Reload",
    "Rule",
    "RuleSet",
    "Scope",
    "Setting",
    "UnknownSetting",
    "as_text",
    "buffer_limits",
    "limits",
    "matching",
    "membership",
    "parse_file",
    "parse_overrides",
    "partition_config",
    "read_file",
    "reference",
    "scaler_settings",
    "weighted_rules",
]
