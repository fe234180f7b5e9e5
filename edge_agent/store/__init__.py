"""What survives a restart: models, compiled subgraphs, profiles, plans and the registry."""
