"""The only composer: a request becomes a plan of steps, an executor turns the plan into artefacts."""
