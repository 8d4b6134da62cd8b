"""`python -m lmerge_service.cli` is `lmerge`."""

from lmerge_service.cli import main

main()
