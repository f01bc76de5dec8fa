package storetest

var stressCases []suiteCase
