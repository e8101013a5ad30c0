"""Protocols that real and simulated backends implement."""
