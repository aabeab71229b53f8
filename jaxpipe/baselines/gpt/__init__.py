"""GPTs as the searches see them: their graph and parameters, their costs, their stages."""
