"""Processes: started, limited, ended, and spoken to."""
