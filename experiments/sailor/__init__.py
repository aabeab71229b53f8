"""Sailor's measured runs, its simulator and its planner's scenarios."""
