"""The building child: admits models to the store, divides, compiles, profiles and plans them."""
