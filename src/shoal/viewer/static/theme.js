// Before the first paint: the theme that was chosen last time. Without a choice the system's is used.
"use strict";
try {
  const chosen = localStorage.getItem("shoal-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) { /* storage may be switched off */ }
