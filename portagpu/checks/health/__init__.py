"""``portagpu health``: a node judged once, without torch and without opening a device.

It judges with the bring-up gates identity, links and health, and adds the kernel's log, an action
for each finding, a time limit that holds whatever hangs, and the exit codes of schedulers.
"""
