"""The environments that come with prl-train."""
