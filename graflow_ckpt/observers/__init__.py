"""Observers that come with the package: metrics for Prometheus, traces for OpenTelemetry.

Each is a module that needs an extra of its own, so nothing is loaded here.
"""
