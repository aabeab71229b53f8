"""Published systems as simulated steps: DT-FM, Megatron-LM, ZeRO-3, with fitted constants."""
