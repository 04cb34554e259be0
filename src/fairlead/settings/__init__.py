"""Dynamic settings: declared once, read from a file in Temporal's format, reloaded while the server runs."""

from fairlead.settings.dynamic import history, limits, matching, membership
from fairlead.settings.dynamic.catalogue import SETTINGS
from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.file import ParsedFile, parse_file
from fairlead.settings.dynamic.for_core import buffer_limits, partition_counts, scaler_settings, weighted_rules
from fairlead.settings.dynamic.kinds import Plain, as_text
from fairlead.settings.dynamic.reference import reference
from fairlead.settings.dynamic.registry import ConflictingDeclarations, Registry
from fairlead.settings.dynamic.rules import EVERYWHERE, Rule, RuleSet, Scope
from fairlead.settings.dynamic.source import DynamicSettings, Outcome, Reload, parse_overrides, read_file
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem, SettingWithoutEffect, UnknownSetting

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
    "SettingWithoutEffect",
    "UnknownSetting",
    "as_text",
    "buffer_limits",
    "history",
    "limits",
    "matching",
    "membership",
    "parse_file",
    "parse_overrides",
    "partition_counts",
    "read_file",
    "reference",
    "scaler_settings",
    "weighted_rules",
]
