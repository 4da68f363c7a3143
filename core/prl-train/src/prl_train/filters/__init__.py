"""The filters that come with prl-train."""
