"""Finding models and keeping them: the catalog of short names, the store on disk, and `pull`."""
