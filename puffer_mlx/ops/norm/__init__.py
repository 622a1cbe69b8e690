"""RMSNorm of a sum."""
