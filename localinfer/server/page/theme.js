// Before anything is painted: a page that is dark must not flash white.
try {
  const theme = localStorage.getItem("localinfer.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the theme of the system.
}
