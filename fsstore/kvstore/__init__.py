"""Key-value stores: roots reach a place where bytes are kept, adapters rewrite requests to a base store."""
