"""Encoders: observations to features."""
