"""PTX: module, instruction table, builder, printer, parser, validator. Knows nothing of how anything is executed."""
