package cli

import (
	"github.com/spf13/cobra"
)

func newCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:     "completion bash|zsh|fish|powershell",
		GroupID: groupSetUp,
		Short:   "Print a completion script for a shell",
		Long: `Print a completion script for a shell. Source it from the shell's start-up file,
or save it where the shell looks for completions.`,
		Example: `  source <(solotick completion bash)
  solotick completion zsh > "${fpath[1]}/_solotick"
  solotick completion fish > ~/.config/fish/completions/solotick.fish`,
		ValidArgs:             shells,
		Args:                  cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(w, true)
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			}
			return root.GenPowerShellCompletionWithDesc(w)
		},
	}
}
