"""Runs several hosts on one machine as processes, behind one port for SDKs and one metrics endpoint."""
