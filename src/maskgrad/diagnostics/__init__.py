"""Diagnostics: experiments made of ordinary runs."""
