"""Operations: one question or one change each, silent, for the command line and for programs."""
