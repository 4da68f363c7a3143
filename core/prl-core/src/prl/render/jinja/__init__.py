"""The fallback renderer for any model with a chat template: proven attribution, proven bridge, or an honest None."""
