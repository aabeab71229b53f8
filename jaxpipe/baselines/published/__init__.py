"""Published systems as simulated steps: DT-FM, Megatron-LM and ZeRO-3, with fitted constants."""
