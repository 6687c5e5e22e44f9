"""Text to tokens and back: cards, templates, tokenizers, incremental detokenizing, stop strings. Knows no stream."""
