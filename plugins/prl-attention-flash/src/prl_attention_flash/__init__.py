"""FlashAttention 2, 3 and 4 behind one adapter that reads the installed functions' own signatures."""
