"""A dataset on disk or in object storage: its record with checksums, its arrays, its tokenizer.

::

    dataset.json   record ─► dataset: open_dataset ─► train, eval, labels
    tokenizer.json ─► byte_pairs, or bytes: tokenizer
      └ tokenizer_files, tokenizer_config, chat_template: what its owner has beside it
      └ long_text, spelt_tokens: texts of any length, and those of strangers
    bring_dataset  where the hosts of a run share no folder
"""
