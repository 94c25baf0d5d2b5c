"""The simulation for users: their own workflows in virtual time, under faults.

Read ``simulate.py`` first, then ``scene.py``. A scene is one run: the app's workers and the outside (``process.py``,
``outside.py``) as processes of the simulated loop, the real SQL, and around each call of a step what befalls it
(``calls.py``, ``mishaps.py``). ``judge.py`` compares it with the run without faults.
"""
