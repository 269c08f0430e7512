"""HTTP: the OpenAI and Anthropic APIs over one internal request, one stream of increments and one ledger."""
