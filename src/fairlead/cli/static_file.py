"""Reads the configuration file of a server, and prints its mistakes."""

import dataclasses
import os
from pathlib import Path

from fairlead.cli.server_messages import report_problems
from fairlead.settings import InvalidSettings
from fairlead.settings.static.config import DEFAULTS, LogLevel, StaticConfig, load_config


def read_static(file: Path | None, log_level: str | None, *, is_insecure: bool = False) -> StaticConfig:
    """The configuration of the file, or the defaults without one, with the flags."""
    config = DEFAULTS
    try:
        if file is not None:
            config = load_config(file, os.environ)
    except InvalidSettings as wrong:
        report_problems(file, wrong)
    if is_insecure:
        config = with_insecure(config)
    return config if log_level is None else dataclasses.replace(config, log_level=LogLevel(log_level))


def with_insecure(config: StaticConfig) -> StaticConfig:
    """The configuration with the flag --insecure."""
    return dataclasses.replace(config, security=dataclasses.replace(config.security, is_insecure=True))
